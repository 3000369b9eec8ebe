import assert from 'node:assert/strict'
import { readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import fc from 'fast-check'
import { makeFolder } from '../images/testing.ts'
import { RING_BYTES, RING_RECORDS, Rings, type StoredSample } from './rings.ts'
import { RECORD_BYTES, type Sample } from './sample.ts'

const RUNS = Number(process.env.WARREN_PROPERTY_RUNS ?? 200)
const ID = `sb-${'0'.repeat(26)}`
const FIRST_TICK = 178_000_000

const sampleOf = (cores: number): Sample => ({
  ...{ cpu_cores_used: cores, memory_bytes: 2, memory_used_guest_bytes: 3, memory_limit_bytes: 4 },
  ...{ net_bytes_in_per_sec: 5.5, net_bytes_out_per_sec: 6, storage_bytes: 2 ** 50, storage_limit_bytes: 8 },
})

test('samples are read back in order, and none of a sandbox that has none', async (t) => {
  const rings = new Rings(await makeFolder(t))

  rings.write(ID, FIRST_TICK + 1, sampleOf(0.25))
  rings.write(ID, FIRST_TICK + 5, sampleOf(2))

  const expected = [
    { tick: FIRST_TICK + 1, sample: sampleOf(0.25) },
    { tick: FIRST_TICK + 5, sample: sampleOf(2) },
  ]
  assert.deepEqual(rings.list(ID, FIRST_TICK + 9), expected)
  assert.deepEqual(rings.list(`sb-${'1'.repeat(26)}`, FIRST_TICK), [])
})

/**
 * The model is a map from tick to sample. A write deletes what is not before it, because the clock was set back, and what
 * was in the same place an hour, or several, before.
 */
test('any sequence of samples, pauses, restarts and clock changes leaves the samples of the last hour', async (t) => {
  const step = fc.oneof(
    {
      weight: 20,
      arbitrary: fc.record({ kind: fc.constant('samples' as const), count: fc.integer({ min: 1, max: 200 }) }),
    },
    {
      weight: 4,
      arbitrary: fc.record({ kind: fc.constant('pause' as const), ticks: fc.integer({ min: 1, max: 800 }) }),
    },
    { weight: 4, arbitrary: fc.record({ kind: fc.constant('restart' as const) }) },
    {
      weight: 3,
      arbitrary: fc.record({ kind: fc.constant('clock' as const), back: fc.integer({ min: -2_000, max: 2_000 }) }),
    },
  )
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 25 }), async (steps) => {
      const folder = await makeFolder(t)
      let rings = new Rings(folder)
      let now = FIRST_TICK
      let written = 0
      const model = new Map<number, Sample>()
      for (const one of steps) {
        if (one.kind === 'restart') rings = new Rings(folder)
        if (one.kind === 'pause') now += one.ticks
        if (one.kind === 'clock') now -= one.back
        for (let i = 0; one.kind === 'samples' && i < one.count; i++) {
          now++
          const sample = sampleOf(++written)
          for (const tick of model.keys()) if (tick >= now || (now - tick) % RING_RECORDS === 0) model.delete(tick)
          model.set(now, sample)
          rings.write(ID, now, sample)
        }
        const expected: StoredSample[] = [...model]
          .filter(([tick]) => tick <= now && tick > now - RING_RECORDS)
          .map(([tick, sample]) => ({ tick, sample }))
        assert.deepEqual(rings.list(ID, now), expected)
        if (written > 0) assert.equal(statSync(path.join(folder, `${ID}.ring`)).size, RING_BYTES)
      }
    }),
    { numRuns: RUNS },
  )
})

test('a damaged record is left out, and the others stay', async (t) => {
  const folder = await makeFolder(t)
  const file = path.join(folder, `${ID}.ring`)
  const rings = new Rings(folder)
  for (let i = 0; i < 10; i++) rings.write(ID, FIRST_TICK + i, sampleOf(i))
  const bytes = readFileSync(file)
  const place = (FIRST_TICK + 4) % RING_RECORDS
  bytes[RING_BYTES - (RING_RECORDS - place) * RECORD_BYTES + 7]! ^= 1
  writeFileSync(file, bytes)

  const ticks = new Rings(folder).list(ID, FIRST_TICK + 9).map(({ tick }) => tick - FIRST_TICK)

  assert.deepEqual(ticks, [0, 1, 2, 3, 5, 6, 7, 8, 9])
})

for (const [what, damage] of [
  ['an empty file', (file: string) => truncateSync(file, 0)],
  ['a file of another version', (file: string) => writeFileSync(file, `WARRENM9${'x'.repeat(RING_BYTES)}`)],
  ['a file that was removed', () => {}],
] as const) {
  test(`${what} has no samples, and the next one is stored`, async (t) => {
    const folder = await makeFolder(t)
    new Rings(folder).write(ID, FIRST_TICK, sampleOf(1))
    damage(path.join(folder, `${ID}.ring`))
    const rings = new Rings(folder)
    if (what === 'a file that was removed') rings.remove(ID)

    assert.deepEqual(rings.list(ID, FIRST_TICK), [])
    rings.write(ID, FIRST_TICK + 1, sampleOf(2))
    assert.equal(rings.list(ID, FIRST_TICK + 1).length, 1)
  })
}

test('the ring of a deleted sandbox is removed, and at the start those of unknown ones', async (t) => {
  const folder = await makeFolder(t)
  const [other, third] = [`sb-${'1'.repeat(26)}`, `sb-${'2'.repeat(26)}`]
  const rings = new Rings(folder)
  for (const id of [ID, other, third]) rings.write(id, FIRST_TICK, sampleOf(1))
  writeFileSync(path.join(folder, 'stray'), '')

  rings.remove(ID)
  rings.remove(ID)
  new Rings(folder).removeOthers((id) => id === third)

  assert.deepEqual(readdirSync(folder), [`${third}.ring`])
  assert.throws(() => rings.write('../escape', FIRST_TICK, sampleOf(1)), /is not the id of a sandbox/)
})
