# Runs in a guest. `peer.pl serve NAME` answers each datagram at port 7000 with its name and writes down who sent it
# (/tmp/heard); to whoever connects to port 7001 it writes a byte now and then, for as long as it can.
#
# `peer.pl probe ROUND ANSWERS IPS NAMES` sends ROUND to port 7000 of each of the IPS and asks for each of the NAMES,
# again and again until so many have answered and every question was; it prints `peer IP NAME` and `name NUMBER BYTES`.
#
# `peer.pl hold IP FILE` connects to port 7001 and writes a byte to FILE for each that comes.
use strict;
use IO::Handle;
use Socket;

use constant { TICK_S => 0.02, AGAIN_S => 0.7, LIMIT_S => 30 };

$SIG{PIPE} = 'IGNORE';
my ($verb, @rest) = @ARGV;
{ serve => \&serve, probe => \&probe, hold => \&hold }->{$verb}->(@rest);

sub serve {
    my ($name) = @_;
    my $datagrams = open_socket(SOCK_DGRAM, 7000);
    my $door = open_socket(SOCK_STREAM, 7001);
    listen $door, 10 or die $!;
    open my $heard, '>>', '/tmp/heard' or die $!;
    my @guests;
    for (;;) {
        my $set = '';
        vec($set, fileno $_, 1) = 1 for $datagrams, $door;
        select $set, undef, undef, @guests ? TICK_S : undef;
        if (vec $set, fileno $datagrams, 1) {
            my $from = recv $datagrams, my $round, 100, 0;
            syswrite $heard, "$round " . inet_ntoa((sockaddr_in $from)[1]) . "\n";
            send $datagrams, $name, 0, $from;
        }
        if (vec $set, fileno $door, 1) {
            accept my $guest, $door;
            $guest->blocking(0);
            push @guests, $guest;
        }
        @guests = grep { syswrite($_, '.') || $!{EAGAIN} } @guests;
    }
}

sub probe {
    my ($round, $answers, $ips, $names) = @_;
    my @names = split /,/, $names;
    my (%peers, %answered);
    my $datagrams = open_socket(SOCK_DGRAM, 0);
    my $questions = open_socket(SOCK_DGRAM, 0);
    for (my $limit = time + LIMIT_S; time < $limit && (%peers < $answers || %answered < @names);) {
        for (grep { !$peers{$_} } split /,/, $ips) { send $datagrams, $round, 0, sockaddr_in(7000, inet_aton($_)) }
        for (grep { !$answered{$_} } 0 .. $#names) {
            my $question = pack('n6', $_, 256, 1, 0, 0, 0) . pack('C/a* C n2', $names[$_], 0, 1, 1);
            send $questions, $question, 0, sockaddr_in(53, inet_aton('169.254.1.1'));
        }
        for (;;) {
            my $set = '';
            vec($set, fileno $_, 1) = 1 for $datagrams, $questions;
            last if !select $set, undef, undef, AGAIN_S;
            if (vec $set, fileno $datagrams, 1) {
                my $from = recv $datagrams, my $name, 100, 0;
                $peers{ inet_ntoa((sockaddr_in $from)[1]) } = $name if $from;
            }
            if (vec $set, fileno $questions, 1) {
                recv $questions, my $answer, 1000, 0;
                $answered{ unpack 'n', $answer } = unpack 'H*', $answer;
            }
            last if %peers >= $answers && %answered >= @names;
        }
    }
    print "peer $_ $peers{$_}\n" for keys %peers;
    print "name $_ $answered{$_}\n" for keys %answered;
}

sub hold {
    my ($ip, $file) = @_;
    socket my $socket, PF_INET, SOCK_STREAM, 0 or die $!;
    connect $socket, sockaddr_in(7001, inet_aton($ip)) or die $!;
    open my $came, '>', $file or die $!;
    while (sysread $socket, my $bytes, 100) { syswrite $came, $bytes }
}

sub open_socket {
    my ($type, $port) = @_;
    socket my $socket, PF_INET, $type, 0 or die $!;
    setsockopt $socket, SOL_SOCKET, SO_REUSEADDR, 1;
    bind $socket, sockaddr_in($port, INADDR_ANY) or die $!;
    return $socket;
}
