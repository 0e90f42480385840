"""Reports for people: one self-contained page each."""
