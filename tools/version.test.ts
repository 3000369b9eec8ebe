/** The product has one version: `version` in the package.json at the root. Everything else reads it from there. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { VERSION } from '@warren/kit/version'

const ROOT = path.resolve(import.meta.dirname, '..')
const readJson = (file: string) => JSON.parse(readFileSync(path.join(ROOT, file), 'utf8'))
const { version, workspaces } = readJson('package.json') as { version: string; workspaces: string[] }

test('the version that programs show is that of the root package.json', () => {
  const shown = execFileSync(path.join(ROOT, 'warren'), ['--version'], { encoding: 'utf8' })

  assert.match(version, /^\d+\.\d+\.\d+$/)
  assert.equal(VERSION, version)
  assert.equal(shown, `${version}\n`)
})

test('no workspace has another version', () => {
  const packages = workspaces.filter((workspace) => readJson(`${workspace}/package.json`).version !== undefined)

  assert.deepEqual(packages, [])
})

test('no source file repeats the version', () => {
  const files = execFileSync('git', ['ls-files', '--', '*.ts', '*.rs', '*.sh', '*.sql', '*.py', 'warren'], {
    cwd: ROOT,
    encoding: 'utf8',
  })
  const copies = files
    .trim()
    .split('\n')
    .filter((file) => readFileSync(path.join(ROOT, file), 'utf8').includes(`'${version}'`))

  assert.deepEqual(copies, [])
})

for (const program of ['guest-agent', 'bucket-mount']) {
  test(`${program} has this version`, () => {
    for (const file of ['Cargo.toml', 'Cargo.lock']) {
      const text = readFileSync(path.join(ROOT, program, file), 'utf8')
      assert.equal(new RegExp(`name = "${program}"\nversion = "(.+)"`).exec(text)?.[1], version, file)
    }
  })
}

test('the lock file and the newest release of the changelog have this version', () => {
  const changelog = readFileSync(path.join(ROOT, 'CHANGELOG.md'), 'utf8')
  const releases = [...changelog.matchAll(/^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$/gm)].map(([, release]) => release)

  assert.equal(readJson('package-lock.json').version, version)
  assert.equal(releases[0], version)
})
