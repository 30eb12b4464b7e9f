"""Catalogues built in shards, on engines for data that no machine's memory holds."""
