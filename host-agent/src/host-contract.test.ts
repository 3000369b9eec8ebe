/** The real host agent with real VMs keeps the contract that the control plane's tests rely on with their fake host. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { after, test } from 'node:test'
import { testHostBuildContract } from '@warren/kit/testing/host-build-contract'
import { type ContractHost, testHostContract } from '@warren/kit/testing/host-contract'
import { testHostDiskContract } from '@warren/kit/testing/host-disk-contract'
import { startS3Server } from '@warren/kit/testing/s3-server'
import { startHostAgent } from './testing/host-agent.ts'

const skip =
  process.getuid?.() !== 0
    ? 'virtual machines need root'
    : spawnSync('qemu-system-x86_64', ['--version']).status !== 0 && 'QEMU is not installed'

if (skip) test('the contract of the host API', { skip })
else {
  const { socket, dataDir, cidr } = await startHostAgent({ WARREN_DISKS: 'on' })
  const store = await startS3Server({ after }, 'versitygw')
  await store.createBucket('data')
  const { accessKey: access_key, secretKey: secret_key } = store.credentials
  let addresses = 10

  const host: ContractHost = {
    socket,
    image: 'debian:13',
    newAddress: () => cidr.replace(/\.0\/16$/, `.${++addresses}`),
    killVm(id) {
      const record = JSON.parse(readFileSync(path.join(dataDir, 'vms', `${id}.json`), 'utf8'))
      process.kill(record.vmm.qemu.pid, 'SIGKILL')
    },
    disk: {
      ...{ endpoint: store.endpoint, region: 'auto', bucket: 'data', use_path_style: true, allow_loopback: true },
      credentials: { access_key, secret_key },
      wrongCredentials: { access_key, secret_key: 'wrong' },
    },
  }
  testHostContract(host)
  testHostBuildContract(host)
  testHostDiskContract(host)
}
