# apache with a process for each connection.
MPM=prefork
. "$SCRIPTS/apache.sh"
