"""The status page: files for the browser, packaged as they are."""
