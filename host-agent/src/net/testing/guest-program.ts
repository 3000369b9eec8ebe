/**
 * Stands in for a VM: started by spawnIn with the slot's tap as descriptor 3, it makes a namespace with an eth0 as a
 * guest has it and carries frames between the two cables. `guest.ts MTU SOCKET`. Writes `ready` when the guest is up.
 *
 * On SOCKET it takes lines of JSON: `{"frames":[hex, …]}` puts frames of any form on the cable, as a guest with its own
 * driver could; `{"pieces":[hex, …]}` the same with a virtio header before each, which says what the host shall make of
 * it; `{"seen":true}` answers with the frames that came from it.
 */
import { execFileSync } from 'node:child_process'
import { read, writeSync } from 'node:fs'
import { createServer } from 'node:net'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { unshareNetwork } from '../netd/libc.ts'
import { attachTap } from '../netd/tap.ts'

const SLOT_TAP = 3
const FRAME_MAX_BYTES = 70_000
/** Before each frame on a tap: no checksum or segment to complete. */
const VIRTIO_HEADER_BYTES = 10
const SEEN_MAX = 5_000

const seen: string[] = []

unshareNetwork()
const eth0 = attachTap('eth0')
for (const line of [
  'ip link set lo up',
  'ip addr add 172.30.0.2/30 dev eth0',
  `ip link set eth0 up mtu ${process.argv[2]}`,
  'ip route add default via 172.30.0.1',
]) {
  const [name, ...args] = line.split(' ')
  execFileSync(name!, args)
}
void carry(SLOT_TAP, eth0, (frame) => {
  if (seen.push(frame.toString('hex', VIRTIO_HEADER_BYTES)) > SEEN_MAX) seen.shift()
})
void carry(eth0, SLOT_TAP)
createServer((socket) => {
  createInterface(socket).on('line', (line) => {
    const { frames = [], pieces = [], ...rest } = JSON.parse(line) as Record<'frames' | 'pieces', string[] | undefined>
    const plain = frames.map((frame) => '00'.repeat(VIRTIO_HEADER_BYTES) + frame)
    for (const piece of [...plain, ...pieces]) writeSync(SLOT_TAP, Buffer.from(piece, 'hex'))
    socket.write(`${JSON.stringify('seen' in rest ? seen : [])}\n`)
  })
}).listen(process.argv[3], () => process.stdout.write('ready\n'))

async function carry(from: number, to: number, look?: (frame: Buffer) => void): Promise<never> {
  const frame = Buffer.alloc(FRAME_MAX_BYTES)
  for (;;) {
    const { bytesRead } = await promisify(read)(from, frame, 0, frame.length, null)
    look?.(frame.subarray(0, bytesRead))
    writeSync(to, frame, 0, bytesRead)
  }
}
