"""The page at /: its markup, style and script, which `maskwright.serve.playground_api` sends as they are."""
