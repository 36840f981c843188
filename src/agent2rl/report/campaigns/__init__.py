"""Many runs on one page, and in tables: the leaderboard and the report of a campaign."""
