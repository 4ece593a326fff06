"""The same weights in a faster arithmetic, refused where it strays from the exact one."""
