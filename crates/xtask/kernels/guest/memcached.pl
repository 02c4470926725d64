# Sets keys over eight connections and gets them over others; each value must be the one that was
# set. Takes the port.
use strict;
use warnings;
use IO::Socket::INET;

my ($port) = @ARGV;
my ($connections, $keys) = (8, 4000);

sub value {
    my ($key) = @_;
    my @sizes = (1, 10, 100, 1000, 8000, 40000);
    my $size = $key % 97 == 0 ? $sizes[5] : $sizes[$key % 5];
    return substr(sprintf("<%d:%d>", $key, $key * 2654435761 % 4294967296) x ($size / 4 + 1), 0, $size);
}

sub connect_to {
    for (1 .. 100) {
        my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Proto => "tcp");
        return $socket if $socket;
        select(undef, undef, undef, 0.1);
    }
    die "FAILED: memcached does not answer: $@\n";
}

sub line {
    my ($socket) = @_;
    my $line = <$socket>;
    defined $line or die "FAILED: memcached has closed a connection\n";
    $line =~ s/\r\n$//;
    return $line;
}

my @sockets = map { connect_to() } 1 .. $connections;
for my $key (0 .. $keys - 1) {
    my ($socket, $value) = ($sockets[$key % $connections], value($key));
    print $socket "set key$key $key 0 " . length($value) . "\r\n$value\r\n";
    my $answer = line($socket);
    $answer eq "STORED" or die "FAILED: set key$key: $answer\n";
}
for my $key (0 .. $keys - 1) {
    my ($socket, $value) = ($sockets[($key + 3) % $connections], value($key));
    print $socket "get key$key\r\n";
    my $answer = line($socket);
    my $wanted = "VALUE key$key $key " . length($value);
    $answer eq $wanted or die "FAILED: get key$key: $answer instead of $wanted\n";
    my $got = "";
    while (length($got) < length($value) + 2) {
        read($socket, $got, length($value) + 2 - length($got), length($got))
            or die "FAILED: get key$key ends after " . length($got) . " bytes\n";
    }
    $got eq "$value\r\n" or die "FAILED: get key$key: other bytes than were set\n";
    line($socket) eq "END" or die "FAILED: get key$key: no END\n";
}
print { $sockets[0] } "get missing\r\n";
line($sockets[0]) eq "END" or die "FAILED: a key is there that was never set\n";
print { $sockets[0] } "stats megapipe\r\n";
while ((my $line = line($sockets[0])) ne "END") {
    print "$line\n";
}
print "$keys keys set and got over $connections connections\n";
