"""The results of a report: `document` as JSON and text, `page` as an HTML page with the SVG of `pictures`."""
