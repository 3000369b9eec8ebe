# Runs in a guest, as root: tries each of its arguments at the same time, and prints a line `number outcome`, in hex.
#
#   talk IP PORT PART…       a connection into which each part (hex) goes on its own; the outcome is all that came back
#   ask IP PORT BYTES        a datagram and the one that answers it
#   send IP PORT BYTES       a datagram
#   frames UNTIL FRAME…      frames as they are onto the cable; the outcome is all that came from it, separated by
#                            commas, up to the first that contains UNTIL (hex)
use strict;
use Socket qw(:DEFAULT IPPROTO_TCP TCP_NODELAY);

use constant { LIMIT_S => 7, PART_S => 0.02, QUIET_S => 1, PF_PACKET => 17, ETH_P_ALL => 3 };

$SIG{PIPE} = 'IGNORE';
$| = 1;
my %tried = (talk => \&talk, ask => \&ask, send => \&send_only, frames => \&frames);
for my $number (0 .. $#ARGV) {
    next if fork;
    my ($kind, @rest) = split / /, $ARGV[$number];
    $SIG{ALRM} = sub { say_so($number, 'no answer') };
    alarm LIMIT_S;
    say_so($number, $tried{$kind}->(@rest));
}
1 while wait > 0;

sub say_so {
    my ($number, $outcome) = @_;
    syswrite STDOUT, "$number " . unpack('H*', $outcome) . "\n";
    exit;
}

sub talk {
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

sub ask {
    my ($ip, $port, $bytes) = @_;
    my $socket = datagram($ip, $port, $bytes);
    recv $socket, my $answer, 65536, 0;
    return $answer;
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
    socket my $cable, PF_PACKET, SOCK_RAW, unpack('S', pack 'n', ETH_P_ALL) or die $!;
    open my $file, '<', '/sys/class/net/eth0/ifindex' or die $!;
    my $eth0 = pack 'S n i x12', PF_PACKET, ETH_P_ALL, scalar <$file>;
    bind $cable, $eth0 or die $!;
    for (@frames) { send $cable, pack('H*', $_), 0, $eth0 or die "$!" }
    my @came;
    for (;;) {
        # Of what we sent ourselves the kernel shows us a copy, which is not from the cable.
        my $from = recv $cable, my $frame, 65536, 0;
        next if unpack('x10 C', $from) == 4;
        push @came, unpack 'H*', $frame;
        return join ',', @came if index($came[-1], $until) >= 0;
    }
}

sub readable {
    my ($socket, $seconds) = @_;
    my $set = '';
    vec($set, fileno $socket, 1) = 1;
    return select $set, undef, undef, $seconds;
}
