# Runs in a guest.
#
# `peer.pl serve NAME` responds to each datagram at port 7000 with NAME and records its sender in /tmp/received; to each
# client that connects to port 7001 it sends a byte every 20 ms until the connection breaks.
#
# `peer.pl probe ROUND RESPONSES IPS NAMES` sends ROUND to port 7000 of each of the IPS and a DNS query for each of the
# NAMES. It repeats until that many peers have responded and every query has a response, and prints `peer IP NAME` and
# `name NUMBER BYTES`.
#
# `peer.pl hold IP FILE` connects to port 7001 and writes to FILE each byte that it receives.
use strict;
use IO::Handle;
use Socket;

use constant { TICK_S => 0.02, RETRY_S => 0.7, LIMIT_S => 30 };

$SIG{PIPE} = 'IGNORE';
my ($verb, @rest) = @ARGV;
{ serve => \&serve, probe => \&probe, hold => \&hold }->{$verb}->(@rest);

sub serve {
    my ($name) = @_;
    my $datagrams = open_socket(SOCK_DGRAM, 7000);
    my $listener = open_socket(SOCK_STREAM, 7001);
    listen $listener, 10 or die $!;
    open my $received, '>>', '/tmp/received' or die $!;
    my @clients;
    for (;;) {
        my $set = '';
        vec($set, fileno $_, 1) = 1 for $datagrams, $listener;
        select $set, undef, undef, @clients ? TICK_S : undef;
        if (vec $set, fileno $datagrams, 1) {
            my $from = recv $datagrams, my $round, 100, 0;
            syswrite $received, "$round " . inet_ntoa((sockaddr_in $from)[1]) . "\n";
            send $datagrams, $name, 0, $from;
        }
        if (vec $set, fileno $listener, 1) {
            accept my $client, $listener;
            $client->blocking(0);
            push @clients, $client;
        }
        @clients = grep { syswrite($_, '.') || $!{EAGAIN} } @clients;
    }
}

sub probe {
    my ($round, $responses, $ips, $names) = @_;
    my @names = split /,/, $names;
    my (%peers, %resolved);
    my $datagrams = open_socket(SOCK_DGRAM, 0);
    my $queries = open_socket(SOCK_DGRAM, 0);
    for (my $limit = time + LIMIT_S; time < $limit && (%peers < $responses || %resolved < @names);) {
        for (grep { !$peers{$_} } split /,/, $ips) { send $datagrams, $round, 0, sockaddr_in(7000, inet_aton($_)) }
        for (grep { !$resolved{$_} } 0 .. $#names) {
            my $query = pack('n6', $_, 256, 1, 0, 0, 0) . pack('C/a* C n2', $names[$_], 0, 1, 1);
            send $queries, $query, 0, sockaddr_in(53, inet_aton('169.254.1.1'));
        }
        for (;;) {
            my $set = '';
            vec($set, fileno $_, 1) = 1 for $datagrams, $queries;
            last if !select $set, undef, undef, RETRY_S;
            if (vec $set, fileno $datagrams, 1) {
                my $from = recv $datagrams, my $name, 100, 0;
                $peers{ inet_ntoa((sockaddr_in $from)[1]) } = $name if $from;
            }
            if (vec $set, fileno $queries, 1) {
                recv $queries, my $response, 1000, 0;
                $resolved{ unpack 'n', $response } = unpack 'H*', $response;
            }
            last if %peers >= $responses && %resolved >= @names;
        }
    }
    print "peer $_ $peers{$_}\n" for keys %peers;
    print "name $_ $resolved{$_}\n" for keys %resolved;
}

sub hold {
    my ($ip, $file) = @_;
    socket my $socket, PF_INET, SOCK_STREAM, 0 or die $!;
    connect $socket, sockaddr_in(7001, inet_aton($ip)) or die $!;
    open my $output, '>', $file or die $!;
    while (sysread $socket, my $bytes, 100) { syswrite $output, $bytes }
}

sub open_socket {
    my ($type, $port) = @_;
    socket my $socket, PF_INET, $type, 0 or die $!;
    setsockopt $socket, SOL_SOCKET, SO_REUSEADDR, 1;
    bind $socket, sockaddr_in($port, INADDR_ANY) or die $!;
    return $socket;
}
