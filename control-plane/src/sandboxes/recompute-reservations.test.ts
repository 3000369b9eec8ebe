import assert from 'node:assert/strict'
import { test } from 'node:test'
import { vmmMemoryMib } from '@warren/protocol'
import { sql } from 'kysely'
import { createHostedApp } from '../testing/with-host.ts'
import { recomputeReservations } from './recompute-reservations.ts'
import { reconcile } from './reconcile.ts'

const { deps, host, user, create, assertNothingLeft } = await createHostedApp({ startWorker: false })
const SMALL = { vcpu: 1, mem_mib: 256 }

const reservedOnHost = async () =>
  (await deps.db.selectFrom('hosts').select('reserved_mib').executeTakeFirstOrThrow()).reserved_mib

test('a sandbox reserves the memory of its guest and of its VMM', async () => {
  const ada = await user()

  await create(ada, { shape: 's-1vcpu-256mb' })

  assert.equal(await reservedOnHost(), vmmMemoryMib(SMALL, 'tcg'))
  assert.ok(vmmMemoryMib(SMALL, 'tcg') > vmmMemoryMib(SMALL, 'kvm'))
  assert.ok(vmmMemoryMib(SMALL, 'kvm') > 256)
})

test('sandboxes of an earlier version, which reserved the memory of the guest alone, are recomputed once', async () => {
  const ada = await user()
  await create(ada, { shape: 's-1vcpu-1gb' })
  await sql`update sandboxes set reserved_mib = mem_mib where reserved_mib > 0`.execute(deps.db)
  await sql`update hosts set reserved_mib = 256 + 1024`.execute(deps.db)

  await recomputeReservations(deps)
  await recomputeReservations(deps)

  const wanted = vmmMemoryMib(SMALL, 'tcg') + vmmMemoryMib({ vcpu: 1, mem_mib: 1024 }, 'tcg')
  assert.equal(await reservedOnHost(), wanted)
  await assertNothingLeft()
})

test('a full host stays full: what runs there is counted even where it does not fit', async () => {
  await sql`update sandboxes set reserved_mib = mem_mib where reserved_mib > 0`.execute(deps.db)
  await sql`update hosts set reserved_mib = (select sum(reserved_mib) from sandboxes)`.execute(deps.db)
  await sql`update hosts set mem_mib = reserved_mib`.execute(deps.db)
  const memMib = host.memMib
  host.memMib = await reservedOnHost()

  await reconcile.run(deps)

  const row = await deps.db.selectFrom('hosts').selectAll().executeTakeFirstOrThrow()
  assert.equal(row.mem_mib, row.reserved_mib)
  assert.equal((await create(await user(), { shape: 's-1vcpu-256mb' })).status, 503)
  host.memMib = memMib
})

test('a host that runs guests with KVM reserves less', async () => {
  host.accel = 'kvm'
  await sql`update hosts set accel = 'kvm'`.execute(deps.db)

  await recomputeReservations(deps)

  await assertNothingLeft()
  const { rows } = await sql<{ mib: number }>`select max(reserved_mib - mem_mib) as mib from sandboxes
    where reserved_mib > 0`.execute(deps.db)
  assert.equal(rows[0]!.mib, vmmMemoryMib(SMALL, 'kvm') - 256)
})
