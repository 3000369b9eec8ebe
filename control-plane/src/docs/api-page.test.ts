/** docs/api.md repeats facts of the code in tables. These tests fail when the two no longer agree. */
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { FAILURE_STATUS, type FailureCode } from '@warren/protocol'
import { type Cap, PLANS, type PlanName } from '../users/plans.ts'

const ROOT = path.resolve(import.meta.dirname, '../../..')
const page = readFileSync(path.join(ROOT, 'docs/api.md'), 'utf8')

test('the table of error codes has the codes that the service uses, each with its status', () => {
  const documented = Object.fromEntries(
    [...page.matchAll(/^\| `(\w+)` \| (\d{3}) \| /gm)].map(([, code, status]) => [code, Number(status)]),
  )

  const used = (Object.keys(FAILURE_STATUS) as FailureCode[]).filter(isUsed)

  assert.deepEqual(documented, Object.fromEntries(used.map((code) => [code, FAILURE_STATUS[code]])))
})

test('the table of plans has every plan with its limits', () => {
  const [section = ''] = page.split('\n## Limits\n')[1]?.split('\n## ') ?? []
  const documented = [...section.matchAll(/^\| `(\w+)` \|.*$/gm)].map(([row]) => row)

  assert.deepEqual(documented, (Object.keys(PLANS) as PlanName[]).map(renderPlan))
})

/** The codes of a part that is not served yet appear in the protocol only. */
const sources = globSync('{control-plane,kit}/src/**/*.ts', { cwd: ROOT })
  .filter((file) => !/\.test\.ts$|\/testing\//.test(file))
  .map((file) => readFileSync(path.join(ROOT, file), 'utf8'))

const isUsed = (code: FailureCode): boolean => sources.some((source) => source.includes(`'${code}'`))

function renderPlan(name: PlanName): string {
  const { sandboxes, networks, disks, templates, webhook_endpoints, max_disk_mib, max_vcpu, max_mem_mib } = PLANS[name]
  const caps = [sandboxes, networks, disks, templates].map(renderCap)
  const endpoints = Number.isFinite(webhook_endpoints) ? webhook_endpoints : 'no limit'
  const cells = [...caps, endpoints, `${max_disk_mib / 1024} GiB`, `${max_vcpu} vCPU, ${max_mem_mib / 1024} GiB`]
  return `| \`${name}\` | ${cells.join(' | ')} |`
}

function renderCap({ concurrent, per_day }: Cap): string {
  if (concurrent === 0) return 'none'
  return Number.isFinite(concurrent) ? `${concurrent} / ${per_day}` : 'no limit'
}
