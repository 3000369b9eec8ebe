/**
 * Runs in its own mount namespace, as on a machine where no network namespace was named yet: creates a slot, then the
 * machine's first `ip netns add`, then releases the slot. Prints whether the slot was removed completely.
 */
import { existsSync } from 'node:fs'
import { netnsPath } from '../names.ts'
import { openKernel } from '../netd/kernel.ts'
import { createSlot, releaseSlot } from '../netd/slot.ts'
import { moveToFreshHost, randomInstance, runLine } from './host.ts'

await runLine('mount -t tmpfs none /run')
await moveToFreshHost()
const kernel = openKernel(randomInstance())
createSlot(kernel, { slot: 0, mtu: 1400, tapOwnerUid: 0, packetsPerSecond: 100_000 })
await runLine('ip netns add other')
const { freed } = await releaseSlot(kernel, 0)
process.stdout.write(JSON.stringify({ freed, exists: existsSync(netnsPath(kernel.instance, 0)) }))
process.exit()
