"""The page at /: its markup, style and script, which `maskwright.serve.play` sends as they are."""
