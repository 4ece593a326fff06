"""Recordings of our node computed again, from exactly the inputs that the robot used."""
