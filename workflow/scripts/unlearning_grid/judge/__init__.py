"""Label sets and the judges that fill them."""
