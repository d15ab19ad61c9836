"""Reports: a result becomes sections once (a file a verb); text, Markdown, HTML and JSON are renderers of them."""
