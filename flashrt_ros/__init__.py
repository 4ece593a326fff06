"""Learned robot policies as graph-bound programs with a nameable execution state."""

# The generated msg and srv packages stand beside this file in an install; imported from a source
# tree, they are found in the installed copy further down sys.path.
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
__version__ = "0.1.0"
