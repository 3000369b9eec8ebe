/**
 * Imitates a VM: `guest-program.ts MTU SOCKET ADDRESS`, started by the VMM launcher with the slot's tap as descriptor 3. It
 * creates a network namespace with an eth0 as in a guest, with its address, and copies frames between the two taps. It prints `ready` when the
 * interface is up.
 *
 * On SOCKET it accepts lines of JSON: `{"frames":[hex, …]}` writes arbitrary frames to the slot's tap, as a guest with its
 * own driver could; `{"packets":[hex, …]}` does the same with a virtio header before each, which asks the host for offload;
 * `{"received":true}` is answered with the frames that came from the slot's tap.
 */
import { execFileSync } from 'node:child_process'
import { read, writeSync } from 'node:fs'
import { createServer } from 'node:net'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { unshareNetwork } from '../../ffi/network-namespace.ts'
import { attachTap } from '../../ffi/tap.ts'
import { GUEST_GATEWAY, GUEST_MAC } from '../names.ts'

const SLOT_TAP = 3
const FRAME_MAX_BYTES = 70_000
/** Before each frame on a tap. All zero: there is no checksum or segmentation to complete. */
const VIRTIO_HEADER_BYTES = 10
const RECEIVED_MAX = 5_000

const [, , mtu, socketPath, address] = process.argv
const received: string[] = []

unshareNetwork()
const eth0 = attachTap('eth0')
for (const line of [
  'ip link set lo up',
  `ip link set eth0 address ${GUEST_MAC}`,
  `ip addr add ${address}/32 dev eth0`,
  `ip link set eth0 up mtu ${mtu}`,
  `ip route add default via ${GUEST_GATEWAY} dev eth0 onlink`,
]) {
  const [name, ...args] = line.split(' ')
  execFileSync(name!, args)
}
void copyFrames(SLOT_TAP, eth0, (frame) => {
  if (received.push(frame.toString('hex', VIRTIO_HEADER_BYTES)) > RECEIVED_MAX) received.shift()
})
void copyFrames(eth0, SLOT_TAP)
createServer((socket) => {
  createInterface(socket).on('line', (line) => {
    const {
      frames = [],
      packets = [],
      ...rest
    } = JSON.parse(line) as Record<'frames' | 'packets', string[] | undefined>
    const plain = frames.map((frame) => '00'.repeat(VIRTIO_HEADER_BYTES) + frame)
    for (const packet of [...plain, ...packets]) writeSync(SLOT_TAP, Buffer.from(packet, 'hex'))
    socket.write(`${JSON.stringify('received' in rest ? received : [])}\n`)
  })
}).listen(socketPath, () => process.stdout.write('ready\n'))

async function copyFrames(from: number, to: number, onFrame?: (frame: Buffer) => void): Promise<never> {
  const frame = Buffer.alloc(FRAME_MAX_BYTES)
  for (;;) {
    const { bytesRead } = await promisify(read)(from, frame, 0, frame.length, null)
    onFrame?.(frame.subarray(0, bytesRead))
    writeSync(to, frame, 0, bytesRead)
  }
}
