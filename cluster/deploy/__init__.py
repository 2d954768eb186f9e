"""Ray Serve application and `tandem serve`; the only package that imports `ray`."""
