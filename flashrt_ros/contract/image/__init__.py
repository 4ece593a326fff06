"""Camera images: encodings, resampling as the policy was trained, and their checks."""
