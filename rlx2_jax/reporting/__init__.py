"""Building blocks of reports: tables as Markdown, HTML and CSV, and readers of logs."""
