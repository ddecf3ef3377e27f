"""Puts the plugin into servers, takes it out, and says what is wrong with an installation."""
