"""One suite a module: ``bench_<suite>.py`` is behind the records ``results/<suite>/``."""
