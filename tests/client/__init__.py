"""The client and the command line against a real HTTP server that speaks the API's forms."""
