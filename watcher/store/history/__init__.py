"""The history of windows in the database: its rows, and what is read from them for the API and for replay."""
