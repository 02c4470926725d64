# apache with threads, and one that waits for all idle connections.
MPM=event
. "$SCRIPTS/apache.sh"
