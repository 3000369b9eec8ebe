import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { checkPackageFiles, readPackageFiles, recordingOptions } from './package-files.ts'
import { makeFolder } from './testing.ts'

const [ONE, OTHER] = ['1', '2'].map((digit) => digit.repeat(64)) as [string, string]
const LISTS = `Package: vim-tiny
Version: 2:9.1.1230-2
Architecture: amd64
Filename: pool/main/v/vim/vim-tiny_9.1.1230-2_amd64.deb
SHA256: ${ONE}

Package: base-files
Architecture: all
Version: 13.8
SHA256: ${OTHER}
`

test('package files are recorded with the SHA-256 that the lists of the archive have', () => {
  const sums = `${ONE}  vim-tiny_2%3a9.1.1230-2_amd64.deb\n${OTHER}  base-files_13.8_all.deb\n`

  assert.deepEqual(checkPackageFiles({ sums, available: LISTS }), [
    { name: 'vim-tiny', version: '2:9.1.1230-2', architecture: 'amd64', sha256: ONE },
    { name: 'base-files', version: '13.8', architecture: 'all', sha256: OTHER },
  ])
})

test('a file with another content, or that the archive does not have, is refused', () => {
  const check = (sums: string) => () => checkPackageFiles({ sums, available: LISTS })

  assert.throws(
    check(`${OTHER}  vim-tiny_2%3a9.1.1230-2_amd64.deb\n`),
    /the SHA-256 of vim-tiny 2:9\.1\.1230-2 is 2+, and 1+ in/,
  )
  assert.throws(check(`${ONE}  vim-tiny_2%3a9.1.1230-3_amd64.deb\n`), /vim-tiny 2:9\.1\.1230-3 is not in the lists/)
  assert.throws(check(`${OTHER}  base-files_13.8_amd64.deb\n`), /base-files 13\.8 is not in the lists/)
  assert.throws(check('no sum\n'), /failed to parse the SHA-256 of a package/)
})

test('an installed package without a recorded file is refused', async (t) => {
  const folder = await makeFolder(t)
  const root = path.join(folder, 'root')
  await mkdir(path.join(root, 'var/lib/dpkg'), { recursive: true })
  const status = 'Package: base-files\nStatus: install ok installed\nArchitecture: all\nVersion: 13.8\n'
  await writeFile(path.join(folder, 'package-sums'), `${OTHER}  base-files_13.8_all.deb\n`)
  await writeFile(path.join(folder, 'package-lists'), LISTS)

  await writeFile(path.join(root, 'var/lib/dpkg/status'), status)
  assert.equal((await readPackageFiles(folder, root)).length, 1)

  await writeFile(path.join(root, 'var/lib/dpkg/status'), `${status}\n${status.replace('base-files', 'added')}`)
  await assert.rejects(readPackageFiles(folder, root), /no \.deb file was recorded for added/)
})

test('the files are hashed where the root is built, also in a folder with an unusual name', async (t) => {
  const folder = path.join(await makeFolder(t), "it's a build")
  const root = path.join(folder, 'root')
  await mkdir(path.join(root, 'var/cache/apt/archives'), { recursive: true })
  await writeFile(path.join(root, 'var/cache/apt/archives/tiny_1_all.deb'), 'tiny')

  const hook = recordingOptions(folder).find((option) => option.startsWith('--customize-hook='))!
  execFileSync('sh', ['-c', hook.replace('--customize-hook=', ''), 'exec', root], {
    env: { ...process.env, MMDEBSTRAP_APT_CONFIG: '/dev/null' },
  })

  const sum = execFileSync('sha256sum', { input: 'tiny', encoding: 'utf8' }).split(' ')[0]
  assert.equal(await readFile(path.join(folder, 'package-sums'), 'utf8'), `${sum}  tiny_1_all.deb\n`)
})
