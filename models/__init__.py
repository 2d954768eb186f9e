"""The demo model that ships with Tandem: its text, its training and the folder served."""
