import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { rm, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { after, type TestContext, test } from 'node:test'
import { makeFolder } from '../images/testing.ts'
import { startWorkerPool } from '../snapshots/worker-pool.ts'
import { findDamage, writeChecksums } from './check.ts'

const workers = startWorkerPool(1)
after(() => workers.close())

async function makeBase(t: TestContext) {
  const folder = await makeFolder(t)
  const at = (name: string) => path.join(folder, name)
  const files = { image: at('root.ext4'), disk: at('disk.qcow2'), ram: at('ram'), state: at('state') }
  for (const file of Object.values(files)) await writeFile(file, Buffer.alloc(3_000_000, file))
  const base = { id: randomUUID(), folder, files }
  await writeChecksums({ workers }, base)
  return base
}

/** As the next host agent finds it. Checks are remembered by id, so another id stands for a process without any. */
const afterRestart = <Base extends { id: string }>(base: Base): Base => ({ ...base, id: randomUUID() })

test('an unchanged base has no damage', async (t) => {
  const base = await makeBase(t)

  assert.equal(await findDamage({ workers }, base), undefined)
  assert.equal(await findDamage({ workers }, afterRestart(base)), undefined)
})

for (const name of ['image', 'disk', 'ram', 'state'] as const) {
  test(`a flipped bit, a missing byte and a missing file are found in the ${name} of a base`, async (t) => {
    const base = await makeBase(t)
    const file = base.files[name]
    const damageAfter = async (change: () => Promise<void>) => {
      await change()
      return (await findDamage({ workers }, afterRestart(base))) ?? 'nothing'
    }

    const flipped = Buffer.alloc(3_000_000, file)
    flipped[2_500_000]! ^= 1
    assert.match(
      await damageAfter(() => writeFile(file, flipped)),
      new RegExp(`its ${name}: the checksum of MiB 2 does not match`),
    )
    assert.match(await damageAfter(() => truncate(file, 2_999_999)), /2999999 bytes instead of 3000000/)
    assert.match(await damageAfter(() => rm(file)), new RegExp(`its ${name}: it is missing`))
  })
}

test('a base is read only once per run of the host agent', async (t) => {
  const base = afterRestart(await makeBase(t))

  const first = findDamage({ workers }, base)
  const second = findDamage({ workers }, base)

  assert.equal(first, second)
  assert.equal(await first, undefined)
})
