"""Pages of docs/reference, made from the code that they describe (`make docs`)."""
