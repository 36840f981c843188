"""A public leaderboard as a static site: read runs, check them, rank them, write pages."""
