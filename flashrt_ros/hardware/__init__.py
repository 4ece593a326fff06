"""What GPU, driver, torch and memory there are, and whether they fit; imports no torch itself."""
