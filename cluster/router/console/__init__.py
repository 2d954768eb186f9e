"""What operators get of a router: the admin service, and the console's view and acts."""
