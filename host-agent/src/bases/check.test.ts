import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { rm, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { after, type TestContext, test } from 'node:test'
import { makeFolder } from '../images/testing.ts'
import { startWorkerPool } from '../snapshots/worker-pool.ts'
import type { Base } from './base.ts'
import { findDamage, sumBase } from './check.ts'

const workers = startWorkerPool(1)
after(() => workers.close())

async function makeBase(t: TestContext): Promise<Base> {
  const folder = await makeFolder(t)
  const at = (name: string) => path.join(folder, name)
  const files = { image: at('root.ext4'), disk: at('disk.qcow2'), ram: at('ram'), state: at('state') }
  for (const file of Object.values(files)) await writeFile(file, Buffer.alloc(3_000_000, file))
  const base = { key: 'key', id: randomUUID(), folder, shape: { vcpu: 1, mem_mib: 3 }, diskMib: 10, files }
  await sumBase({ workers }, base)
  return base
}

/** As the next host agent finds it: it has checked nothing yet, and knows the build by another name here. */
const foundAgain = (base: Base): Base => ({ ...base, id: randomUUID() })

test('a base that is as it was built is found whole', async (t) => {
  const base = await makeBase(t)

  assert.equal(await findDamage({ workers }, base), undefined)
  assert.equal(await findDamage({ workers }, foundAgain(base)), undefined)
})

for (const name of ['image', 'disk', 'ram', 'state'] as const) {
  test(`of the ${name} of a base a flipped bit, a missing byte and a missing file are noticed`, async (t) => {
    const base = await makeBase(t)
    const file = base.files[name]
    const damage = async (harm: () => Promise<void>) => {
      await harm()
      return (await findDamage({ workers }, foundAgain(base))) ?? 'nothing'
    }

    const flipped = Buffer.alloc(3_000_000, file)
    flipped[2_500_000]! ^= 1
    assert.match(
      await damage(() => writeFile(file, flipped)),
      new RegExp(`its ${name}: the checksum of MiB 2 does not match`),
    )
    assert.match(await damage(() => truncate(file, 2_999_999)), /2999999 bytes instead of 3000000/)
    assert.match(await damage(() => rm(file)), new RegExp(`its ${name}: it is missing`))
  })
}

test('it is read once, however often it is asked for', async (t) => {
  const base = foundAgain(await makeBase(t))

  const first = findDamage({ workers }, base)
  const second = findDamage({ workers }, base)

  assert.equal(first, second)
  assert.equal(await first, undefined)
})
