/** What is left for a sandbox when others have used up what is there for all. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { LIMITS, Occupancy } from './limits.ts'
import type { Mount } from './mounts.ts'

const mountOf = (sandboxIp: string, id = sandboxIp) => ({ id, sandboxIp }) as Mount
const mountsOf = (sandboxIp: string) =>
  Array.from({ length: LIMITS.requestsPerSandbox / LIMITS.requestsPerMount }, (_, i) =>
    mountOf(sandboxIp, `${sandboxIp} ${i}`),
  )

/** Hostile sandboxes that have taken everything that they get. */
function fill(take: (mount: Mount) => void): void {
  for (let sandbox = 0; sandbox < 20; sandbox++) {
    for (const mount of mountsOf(`hostile ${sandbox}`)) {
      try {
        for (;;) take(mount)
      } catch {
        // It gets no more.
      }
    }
  }
}

test('sandboxes that occupy all requests leave a share for every other, and no more', () => {
  const occupancy = new Occupancy()
  fill((mount) => occupancy.enterRequest(mount))

  for (const sandbox of ['one', 'two']) {
    const mount = mountOf(sandbox)
    const leaves = Array.from({ length: LIMITS.requestsReserved }, () => occupancy.enterRequest(mount))
    assert.throws(() => occupancy.enterRequest(mount), { code: 'SlowDown' })
    leaves[0]!()
    occupancy.enterRequest(mount)
  }
})

test('sandboxes that occupy all memory leave room for a listing of another, within the limit for all', () => {
  const occupancy = new Occupancy()
  let bytes = 0
  fill((mount) => {
    occupancy.reserveBytes(mount, LIMITS.smallUploadBytes)
    bytes += LIMITS.smallUploadBytes
  })

  const free = occupancy.reserveBytes(mountOf('one'), LIMITS.listingBytes)
  assert.throws(() => occupancy.reserveBytes(mountOf('one'), 1), { code: 'SlowDown' })
  free()
  occupancy.reserveBytes(mountOf('one'), LIMITS.listingBytes)
  assert.ok(bytes + LIMITS.listingBytes <= LIMITS.bufferedBytesMax)
})
