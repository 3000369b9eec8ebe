/**
 * Run in a mount namespace of its own: a machine where nobody has made a named namespace yet. A slot, then the first
 * `ip netns add`, then the slot's end. Prints what is left of it.
 */
import { existsSync } from 'node:fs'
import { netnsPath } from '../names.ts'
import { openKernel } from '../netd/kernel.ts'
import { createSlot, releaseSlot } from '../netd/slot.ts'
import { command, moveToFreshHost, randomInstance } from './host.ts'

await command('mount -t tmpfs none /run')
await moveToFreshHost()
const kernel = openKernel(randomInstance())
createSlot(kernel, { slot: 0, mtu: 1400, tapOwnerUid: 0 })
await command('ip netns add somebody-else')
const { freed } = await releaseSlot(kernel, 0)
process.stdout.write(JSON.stringify({ freed, left: existsSync(netnsPath(kernel.instance, 0)) }))
process.exit()
