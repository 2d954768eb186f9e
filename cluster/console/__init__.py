"""The console: a page for operators, its feed of events, and what the page may ask for."""
