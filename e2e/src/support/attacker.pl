# Runs in a guest, as root. Each argument is an attempt; all are made at the same time. Prints a line `number outcome`
# for each, with the outcome in hex. All bytes in arguments are in hex too.
#
#   tcp IP PORT PART…        opens a connection and sends each part separately; the outcome is everything received
#   udp IP PORT BYTES        sends a datagram; the outcome is the first datagram received
#   send IP PORT BYTES       sends a datagram
#   frames UNTIL FRAME…      sends Ethernet frames; the outcome is the frames received, separated by commas, up to the
#                            first that contains UNTIL
use strict;
use Socket qw(:DEFAULT IPPROTO_TCP TCP_NODELAY);

use constant { LIMIT_S => 7, PART_S => 0.02, QUIET_S => 1, PF_PACKET => 17, ETH_P_ALL => 3 };

$SIG{PIPE} = 'IGNORE';
$| = 1;
my %attempts = (tcp => \&tcp_exchange, udp => \&udp_exchange, send => \&send_only, frames => \&frames);
for my $number (0 .. $#ARGV) {
    next if fork;
    my ($kind, @rest) = split / /, $ARGV[$number];
    $SIG{ALRM} = sub { report($number, 'no response') };
    alarm LIMIT_S;
    report($number, $attempts{$kind}->(@rest));
}
1 while wait > 0;

sub report {
    my ($number, $outcome) = @_;
    syswrite STDOUT, "$number " . unpack('H*', $outcome) . "\n";
    exit;
}

sub tcp_exchange {
    my ($ip, $port, @parts) = @_;
    socket my $socket, PF_INET, SOCK_STREAM, 0 or return "no socket: $!";
    setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1;
    connect $socket, sockaddr_in($port, inet_aton($ip)) or return "no connection: $!";
    for (@parts) {
        syswrite $socket, pack('H*', $_);
        select undef, undef, undef, PART_S;
    }
    my $text = '';
    while (readable($socket, length $text ? QUIET_S : undef)) {
        sysread($socket, $text, 65536, length $text) or return length $text ? $text : 'closed';
    }
    return $text;
}

sub udp_exchange {
    my ($ip, $port, $bytes) = @_;
    my $socket = datagram($ip, $port, $bytes);
    recv $socket, my $response, 65536, 0;
    return $response;
}

sub send_only {
    datagram(@_);
    return 'sent';
}

sub datagram {
    my ($ip, $port, $bytes) = @_;
    socket my $socket, PF_INET, SOCK_DGRAM, 0 or die $!;
    send $socket, pack('H*', $bytes), 0, sockaddr_in($port, inet_aton($ip)) or die $!;
    return $socket;
}

sub frames {
    my ($until, @frames) = @_;
    socket my $link, PF_PACKET, SOCK_RAW, unpack('S', pack 'n', ETH_P_ALL) or die $!;
    open my $file, '<', '/sys/class/net/eth0/ifindex' or die $!;
    my $eth0 = pack 'S n i x12', PF_PACKET, ETH_P_ALL, scalar <$file>;
    bind $link, $eth0 or die $!;
    for (@frames) { send $link, pack('H*', $_), 0, $eth0 or die "$!" }
    my @received;
    for (;;) {
        # The kernel also delivers a copy of each frame sent from here (packet type 4), which was not received.
        my $from = recv $link, my $frame, 65536, 0;
        next if unpack('x10 C', $from) == 4;
        push @received, unpack 'H*', $frame;
        return join ',', @received if index($received[-1], $until) >= 0;
    }
}

sub readable {
    my ($socket, $seconds) = @_;
    my $set = '';
    vec($set, fileno $socket, 1) = 1;
    return select $set, undef, undef, $seconds;
}
