"""What several packages of extensions share; no extension itself."""
