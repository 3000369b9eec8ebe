# Runs in a guest and never stops. `packet-sender.pl GOOD EVIL WEB` repeatedly sends numbered datagrams to port 7777 of
# the first two addresses, DNS queries for numbered names of evil.example, and requests for evil.example over a
# connection to WEB, which it reopens when it breaks. All errors are ignored: with the network cut they are expected.
use strict;
use IO::Handle;
use Socket;

use constant { PAUSE_S => 0.01, REOPEN_AFTER => 25 };

$SIG{PIPE} = 'IGNORE';
my ($good, $evil, $web) = @ARGV;
my ($connection, $opened);
socket my $datagrams, PF_INET, SOCK_DGRAM, 0 or die $!;
$datagrams->blocking(0);

for (my $number = 1;; $number++) {
    send_datagram("good-$number", 7777, $good);
    send_datagram("evil-$number", 7777, $evil);
    my @labels = ("q-$number", 'evil', 'example');
    send_datagram(pack('n6', $number, 256, 1, 0, 0, 0) . pack('(C/a*)3 C n2', @labels, 0, 1, 1), 53, '169.254.1.1');
    request($number);
    1 while recv $datagrams, my $response, 65536, 0;
    select undef, undef, undef, PAUSE_S;
}

sub send_datagram {
    my ($bytes, $port, $ip) = @_;
    send $datagrams, $bytes, 0, sockaddr_in($port, inet_aton($ip));
}

sub request {
    my ($number) = @_;
    if (!$connection) {
        socket $connection, PF_INET, SOCK_STREAM, 0;
        $connection->blocking(0);
        connect $connection, sockaddr_in(80, inet_aton($web));
        $opened = $number;
    }
    my $sent = syswrite $connection, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    my $got = sysread $connection, my $response, 65536;
    # Closed by the other side, or not writable for a while.
    if ((defined $got && $got == 0) || (!defined $sent && $number - $opened > REOPEN_AFTER)) { undef $connection }
}
