"""Starting and asking each system; the engine alone."""
