/**
 * Stands in for a VM: started by spawnIn with the slot's tap as descriptor 3, it makes a namespace with an eth0 as a
 * guest has it and carries frames between the two cables. Writes `ready` when the guest is up.
 */
import { execFileSync } from 'node:child_process'
import { read, writeSync } from 'node:fs'
import { promisify } from 'node:util'
import { unshareNetwork } from '../libc.ts'
import { attachTap } from '../tap.ts'

const SLOT_TAP = 3
const FRAME_MAX_BYTES = 70_000

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
void carry(SLOT_TAP, eth0)
void carry(eth0, SLOT_TAP)
process.stdout.write('ready\n')

async function carry(from: number, to: number): Promise<never> {
  const frame = Buffer.alloc(FRAME_MAX_BYTES)
  for (;;) {
    const { bytesRead } = await promisify(read)(from, frame, 0, frame.length, null)
    writeSync(to, frame, 0, bytesRead)
  }
}
