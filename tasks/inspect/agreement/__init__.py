"""`gradus agree`: numbers of agreement, and pairs of rewards over stored rows."""
