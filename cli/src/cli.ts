/**
 * The commands of `warren`. Those that belong to a service are separate programs, started with their arguments
 * unchanged: `admin` of the control plane, `images`, `bases`, `snapshots` and `doctor` of the host agent, `gateway` of the
 * gateway.
 */
import { VERSION } from '@warren/kit/version'
import { spellCommand, warrenCommand } from '@warren/kit/warren-command'
import { Command, Help } from 'commander'
import { printCaCertificate } from './ca.ts'
import { addDisk, attachDisk, detachDisk, listDisks, removeDisks, rotateDisk } from './disks/commands.ts'
import { runDiskDemo } from './disks/demo.ts'
import { printEnv } from './env.ts'
import { installCommand, uninstallCommand } from './install.ts'
import { resizeSandbox } from './resize.ts'
import { runProgram } from './run-program.ts'
import { runSsh } from './ssh.ts'
import { startInstance } from './start.ts'
import { buildTemplate, listTemplates, removeTemplates, showLog } from './templates/commands.ts'
import { openTunnel } from './tunnel.ts'
import { listenForWebhooks } from './webhooks-listen.ts'

const renderSshHelp = (): string => `
Examples:
  ${warrenCommand()} ssh --add-key ~/.ssh/id_ed25519.pub web     add a key, then open a login shell
  ${warrenCommand()} ssh web uname -a                            run a command
  ${warrenCommand()} ssh web -N -L 8000:localhost:80             forward a port
  ${warrenCommand()} ssh --config >> ~/.ssh/config               then: scp report.pdf web.warren:

Uses WARREN_BASE_URL and WARREN_API_KEY, or without them the Warren that runs on this machine.`

const renderDisksHelp = (): string => `
Examples:
  ${warrenCommand()} disks add media --bucket media --endpoint https://s3.eu-west-1.amazonaws.com --region eu-west-1
  ${warrenCommand()} disks attach web media /mnt/media           waits until it is mounted
  ${warrenCommand()} disks ls web                                the mounts of a sandbox, with their status

The keys of the store are read from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, unless options name others. They are
encrypted in the database of Warren, and no sandbox gets them.`

const PROGRAMS = [
  {
    name: 'admin',
    description: 'manage users, plans, credit and API keys',
    file: 'control-plane/src/admin/main.ts',
    needsDatabase: true,
  },
  {
    name: 'images',
    description: 'list, build, import and remove images',
    file: 'host-agent/src/images/main.ts',
    needsDatabase: false,
  },
  {
    name: 'bases',
    description: 'list and prepare bases, the booted machines that sandboxes are cloned from',
    file: 'host-agent/src/bases/main.ts',
    needsDatabase: false,
  },
  {
    name: 'snapshots',
    description: 'list, verify and clean up the snapshots of paused sandboxes',
    file: 'host-agent/src/snapshots/main.ts',
    needsDatabase: false,
  },
  {
    name: 'doctor',
    description: 'check whether this machine can run Warren, and print how to fix what is missing',
    file: 'host-agent/src/doctor/main.ts',
    needsDatabase: false,
  },
  {
    name: 'gateway',
    description: 'deploy projects with a wallet',
    file: 'gateway/src/cli/main.ts',
    needsDatabase: false,
  },
]

export function createCli(): Command {
  const cli = new Command('warren')
    .description('Isolated microVM sandboxes on your own machine')
    .version(VERSION)
    .enablePositionalOptions()
    .configureHelp({ commandUsage: (command) => spellCommand(new Help().commandUsage(command)) })
    .showHelpAfterError()

  cli
    .command('start')
    .description('start Warren on this machine, in the foreground; Ctrl-C stops it')
    .action(startInstance)

  cli
    .command('env')
    .description('print WARREN_BASE_URL and WARREN_API_KEY of the running instance, one per line')
    .action(printEnv)

  cli
    .command('ca')
    .description('print the certificate of the local authority that signs ingress certificates')
    .action(printCaCertificate)

  cli
    .command('ssh')
    .description('open an SSH session in a sandbox, through a tunnel')
    .passThroughOptions()
    .allowUnknownOption()
    .usage('[options] [user@]<sandbox> [ssh options and command...]')
    .argument('[sandbox]', 'name or id of the sandbox')
    .argument('[arguments...]', 'passed to ssh: options, a command')
    .option('--add-key <file>', 'first add a public key to the sandbox')
    .option('--config', 'print a block for ~/.ssh/config, so that ssh, scp, sftp and rsync reach <sandbox>.warren')
    .addHelpText('after', renderSshHelp)
    .action(runSsh)

  cli
    .command('tunnel')
    .description('connect stdin and stdout to a port inside a sandbox, for example as ProxyCommand of ssh')
    .argument('<sandbox>', 'name or id of the sandbox')
    .argument('<port>', 'port inside the sandbox')
    .action(openTunnel)

  cli
    .command('sandboxes')
    .description('manage sandboxes')
    .command('resize')
    .description('grow the disk of a running sandbox and the file system on it, without a restart')
    .argument('<sandbox>', 'name or id of the sandbox')
    .argument('<size>', 'new size: 10G, 20G, 30G, 40G, 50G or 60G, or the same in MiB')
    .action(resizeSandbox)

  const webhooks = cli.command('webhooks').description('receive webhooks on this machine')
  webhooks
    .command('listen')
    .description('print incoming events and verify their signatures, until Ctrl-C')
    .argument('<url-or-port>', 'port on this machine, or the URL under which the API reaches it')
    .option('--events <actions>', 'actions to receive, separated by commas (default: all)')
    .option('--port <port>', 'port to listen on, if a proxy or tunnel leads from the URL to it')
    .option('--secret <secret>', 'verify with the secret of an existing endpoint instead of creating one')
    .option('--json', 'print the bodies as they were received')
    .action(listenForWebhooks)

  const templates = cli.command('templates').description('build and manage templates, root file systems of your own')
  templates
    .command('build')
    .description('build a template from a Dockerfile')
    .requiredOption('--name <name>', 'name of the template; the latest ready build of a name is used')
    .option('-f, --file <file>', 'the Dockerfile, or - to read it from stdin', 'Dockerfile')
    .option('--follow', 'show the steps with their times until the build has ended; exits with 1 if it fails')
    .option('--no-cache', 'run every step again, even if its result is cached')
    .action(buildTemplate)
  templates
    .command('ls')
    .description('list your templates, newest first')
    .option('--json', 'print JSON')
    .action(listTemplates)
  templates
    .command('logs')
    .description('print the log of a build, until the build has ended')
    .argument('<template>', 'name or id of the template')
    .option('-f, --follow', 'show the steps with their times; exits with 1 if the build fails')
    .option('--attempt <number>', 'only this attempt (default: all)')
    .action(showLog)
  templates
    .command('rm')
    .description('delete templates, and cancel their builds; sandboxes made from them continue to exist')
    .argument('<templates...>', 'names or ids')
    .action(removeTemplates)

  addDiskCommands(cli)

  cli
    .command('install')
    .description('link this command onto the PATH, so that it can be called as `warren` from every directory')
    .argument('[folder]', 'a folder on the PATH (default: /usr/local/bin as root, ~/.local/bin otherwise)')
    .action(installCommand)

  cli
    .command('uninstall')
    .description('remove the link that install created')
    .argument('[folder]', 'the folder that was given to install')
    .action(uninstallCommand)

  for (const { name, description, file, needsDatabase } of PROGRAMS) {
    cli
      .command(name)
      .description(description)
      .helpOption(false)
      .passThroughOptions()
      .allowUnknownOption()
      .argument('[arguments...]')
      .action((args: string[]) => runProgram(file, args, { needsDatabase }))
  }

  return cli
}

function addDiskCommands(cli: Command): void {
  const disks = cli
    .command('disks')
    .description('register buckets of S3 stores and mount them in sandboxes')
    .addHelpText('after', renderDisksHelp)
  const addCredentialOptions = (command: Command): Command =>
    command
      .option('--access-key <key>', 'access key of the store (default: AWS_ACCESS_KEY_ID)')
      .option('--secret-key-file <file>', 'file with the secret key, or - for stdin (default: AWS_SECRET_ACCESS_KEY)')

  addCredentialOptions(disks.command('add'))
    .description('register a bucket, after a check that it can be reached with the keys')
    .argument('<name>', 'name of the disk: lower case letters, digits and dashes')
    .requiredOption('--bucket <bucket>', 'name of the bucket')
    .requiredOption('--endpoint <url>', 'base URL of the store, without the bucket')
    .option('--region <region>', 'region of the bucket (default: auto)')
    .option('--path-style', 'address objects as endpoint/bucket/key, for stores without a host name for each bucket')
    .action(addDisk)
  disks
    .command('ls')
    .description('list your disks, or the mounts of a sandbox with their status')
    .argument('[sandbox]', 'name or id of the sandbox')
    .option('--json', 'print JSON')
    .action(listDisks)
  addCredentialOptions(disks.command('rotate'))
    .description('replace the keys of a disk, also in running sandboxes, without unmounting')
    .argument('<disk>', 'name or id of the disk')
    .action(rotateDisk)
  disks
    .command('attach')
    .description('mount a disk in a running sandbox; exits with 1 if the mount fails')
    .argument('<sandbox>', 'name or id of the sandbox')
    .argument('<disk>', 'name or id of the disk')
    .argument('<path>', 'absolute path in the sandbox')
    .option('--sub-path <prefix>', 'mount only this prefix of the bucket')
    .option('--read-only', 'refuse every change of the bucket')
    .option('--no-wait', 'do not wait until the disk is mounted')
    .action(attachDisk)
  disks
    .command('detach')
    .description('save what was written, and remove a mount; the bucket remains')
    .argument('<sandbox>', 'name or id of the sandbox')
    .argument('<disk>', 'name or id of the disk')
    .argument('<path>', 'path of the mount')
    .action(detachDisk)
  disks
    .command('rm')
    .description('delete disks that are not attached, with their keys; the buckets remain')
    .argument('<disks...>', 'names or ids')
    .action(removeDisks)
  disks
    .command('demo')
    .description(
      'start an S3 store on this machine, mount a bucket of it in a new sandbox, and pass a file in each direction',
    )
    .action(runDiskDemo)
}
