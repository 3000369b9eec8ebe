/**
 * A writer in the guest that detects any lost or torn byte. Every record depends on all records before it, is appended
 * to a file and synced, and is also kept in memory. From time to time the writer reads its file again and compares. On a
 * difference it writes the error to a file and exits.
 */
import assert from 'node:assert/strict'
import { runShell, untilInGuest } from './sandboxes.ts'
import type { VmInstance } from './vm-instance.ts'

const STEP = '($h * 1103515245 + $n * 12345 + 7) % 2147483648'

const WRITER = `use IO::Handle; use Fcntl;
sub broken { open(my $b, '>', '/root/broken'); print $b @_; close $b; exit 1 }
open(my $out, '>>', '/root/chain') or broken("open: $!");
my ($h, $n, @all) = (1, 0);
while (1) {
  $n++; $h = ${STEP}; push @all, "$n $h\\n";
  syswrite($out, $all[-1]) == length($all[-1]) or broken("write: $!");
  $out->sync or broken("sync: $!");
  if ($n % 40 == 0) {
    open(my $in, '<', '/root/chain') or broken("read: $!");
    my @read = <$in>; close $in;
    broken("memory has $n records, disk has " . @read) if @read != @all;
    for (0..$#all) { broken("record $_ is $read[$_] instead of $all[$_]") if $read[$_] ne $all[$_] }
  }
  select(undef, undef, undef, 0.005);
}
`

/** Reads the file and checks every link of the chain. Prints the number of the last record. */
const CHECKER = `open(my $in, '<', '/root/chain') or die "open: $!";
my ($h, $n) = (1, 0);
while (my $line = <$in>) { $n++; $h = ${STEP}; die "record $n is $line" if $line ne "$n $h\\n" }
print $n;
`

export async function startChain(warren: VmInstance, id: string): Promise<void> {
  await upload(warren, id, '/root/writer.pl', WRITER)
  await upload(warren, id, '/root/checker.pl', CHECKER)
  const start = 'setsid perl /root/writer.pl >/root/writer.log 2>&1 </dev/null & echo $! > /root/writer.pid'
  await runShell(warren, id, start)
  await untilInGuest(warren, id, 'test -s /root/chain -o -e /root/broken')
}

/** Returns the number of records. Those that were acknowledged before must exist, and the writer must be running. */
export async function checkChain(warren: VmInstance, id: string, atLeast: number): Promise<number> {
  const script = `test ! -e /root/broken || { cat /root/broken; exit 1; }
kill -0 $(cat /root/writer.pid) || { cat /root/writer.log; exit 1; }
perl /root/checker.pl`
  const n = Number(await runShell(warren, id, script))
  assert.ok(n >= atLeast, `${n} records, but there were ${atLeast} before`)
  return n
}

/** The same with an empty page cache, so that the file is read from the disk. */
export async function checkChainOnDisk(warren: VmInstance, id: string, atLeast: number): Promise<number> {
  await runShell(warren, id, 'sync; echo 3 > /proc/sys/vm/drop_caches')
  return checkChain(warren, id, atLeast)
}

async function upload({ instance }: VmInstance, id: string, path: string, content: string): Promise<void> {
  const url = `${instance.baseUrl}/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`
  const response = await fetch(url, { method: 'PUT', headers: { 'x-api-key': instance.key }, body: content })
  assert.equal(response.status, 200, await response.text())
}
